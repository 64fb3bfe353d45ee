"""The commands of ``python -m opinfo_db``, one file each, and what they share."""
