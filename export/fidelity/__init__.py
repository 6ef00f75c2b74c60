"""How close a bundle's graphs are to the fp32 graphs of the same model.

``figures`` compares arrays, ``measure`` compares graphs, ``limits`` says what an export refuses.
``python -m export.fidelity FP32 OTHER`` compares two bundles.
"""
