// Copies through the ACL driver on the emulator.
