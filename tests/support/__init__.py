"""What test modules of several rooms share; no test module imports another."""
