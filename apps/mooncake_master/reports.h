// What the master says over HTTP about its clients and keys.
#pragma once

#include "common/http_server.h"
#include "master/master_service.h"

namespace mooncake {

// GET /tiers: JSON of all clients with their tiers, as they said last.
HttpReply ClientsReport(const MasterService& master);
// GET /get_all_segments: a line per tier.
HttpReply SegmentsReport(const MasterService& master);
// GET /metrics/summary: one line for people.
HttpReply SummaryReport(MasterService& master);
// GET /query_key?key=K: JSON of the owners that readers are sent to; 404 when there are none.
HttpReply KeyReport(const MasterService& master, const HttpRequest& request);
// GET /batch_query_keys?keys=A,B: the same for several; keys without owners say so.
HttpReply KeysReport(const MasterService& master, const HttpRequest& request);

}  // namespace mooncake
