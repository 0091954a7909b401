"""Framework of the analyses: declaration, outcome, registry and checks of their figures."""
