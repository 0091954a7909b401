"""What an analysis is: its declaration, its outcome, how it is found and how its figures are checked."""
