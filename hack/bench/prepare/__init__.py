"""How long preparing and unpreparing claims takes."""
