"""All about ResourceClaims: how they are read, prepared, recorded, reported and unprepared."""
