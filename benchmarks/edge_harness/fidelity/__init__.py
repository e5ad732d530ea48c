"""How far a build's answers are from those of its weights: full-vocabulary divergence and greedy text."""
