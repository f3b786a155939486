"""Task decorators. Importing them is cheap: Dag files do it at every parse."""
