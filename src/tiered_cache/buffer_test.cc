// buffer
