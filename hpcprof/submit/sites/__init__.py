"""Sites: machines and how they are used."""
