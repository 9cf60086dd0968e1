"""`zinf demo`: fine-tune a real language model inside a memory budget.

``packages`` needs the standard library alone; ``run`` and what it imports need the extra
``demo``.
"""
