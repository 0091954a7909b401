"""The web application of a team: it reads the store and the kept events, and changes nothing."""
