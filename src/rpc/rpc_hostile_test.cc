// x
#include "rpc/rpc_server.h"
