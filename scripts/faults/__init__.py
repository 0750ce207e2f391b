"""The parts of ``scripts/faults.py``: commands as processes, what a folder holds, and the faults."""
