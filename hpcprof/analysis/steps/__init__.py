"""Steps and their phases: how long they take, and which GPU work belongs to them."""
