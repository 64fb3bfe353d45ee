"""One file a property; see ``contract.py`` for what a check is."""
