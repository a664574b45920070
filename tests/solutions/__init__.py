"""The assignments of docs/assignments/, solved otherwise than in tests/reference: the grader has to call them right."""
