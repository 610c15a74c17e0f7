// lru_queue
