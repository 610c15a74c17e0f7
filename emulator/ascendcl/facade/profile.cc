// Tells the core which profile the loaded library was made for.
extern "C" void aclemu_facade_loaded(const char* profile);

__attribute__((constructor)) static void Loaded() {
  aclemu_facade_loaded(ACLEMU_FACADE_PROFILE);
}
