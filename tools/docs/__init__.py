"""What draws the pictures and writes the tables of README and docs/.

Each file is run as a module, `python -m tools.docs.NAME`; boxes holds what two pictures share. A
test makes them again and compares.
"""
