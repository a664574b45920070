"""The recipe language: one pydantic tree, ordered like a paper's table of hyperparameters.

Every field has its final name, its type, its limits and one sentence that editors show. Constraints on two fields are
validators of the smallest spec with both. Nothing here imports torch or any other part of lmtool.
"""
