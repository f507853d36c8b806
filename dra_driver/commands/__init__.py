"""What all commands have in common: settings as options, and help."""
