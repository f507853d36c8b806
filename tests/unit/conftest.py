"""Nodes have clocks of any zone, and what is told is in UTC: here no test passes by chance."""

import os
import time

# Auckland's, as POSIX has it: no database of zones is needed.
os.environ["TZ"] = "NZST-12NZDT,M9.5.0,M4.1.0/3"
time.tzset()
