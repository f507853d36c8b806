"""CDI specs: the edits that give containers their devices."""
