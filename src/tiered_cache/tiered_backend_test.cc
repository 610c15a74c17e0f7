// tiered_backend
