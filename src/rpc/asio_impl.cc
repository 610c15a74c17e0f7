// The one translation unit that compiles Asio itself.
#include <asio/impl/src.hpp>
