"""One machine, three loopback hosts, three real faults: what ``ezpz-elastic demo`` shows, and how it checks itself.

``scenario`` tells the story with the commands a user would type, ``faults`` harms it and keeps receipts, ``story``
reads the journals back, ``checks`` compares both with what had to happen (``plot``), ``trainer`` is what workers run.
"""
