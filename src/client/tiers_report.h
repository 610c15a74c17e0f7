// The tiers of a client as JSON, for its HTTP page /tiers.
#pragma once

#include <string>

#include "common/http_server.h"
#include "tiered_cache/tiered_backend.h"

namespace mooncake {

// {"tiers": [{"id", "name", "type", "priority", "tags", "capacity", "used", "free", "largest_hole", "lost",
// "key_count", "hits", "demoted_out", "dropped", "device_refusals"}, ...]}, highest priority first; sizes in bytes.
// ?keys=N adds to each tier "keys": the first N in alphabetical order (at most 10,000). 400 for any other query. Null:
// a client without tiers.
HttpReply TiersReport(const TieredBackend* backend, const HttpRequest& request);

}  // namespace mooncake
