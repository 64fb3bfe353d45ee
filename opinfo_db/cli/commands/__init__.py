"""The commands, one file each, loaded by name: ``check`` needs nothing that ``coverage`` does."""
