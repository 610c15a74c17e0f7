// One HTTP/1.1 request on a connection of its own, bounded in time and memory.
//
// cpp-httplib, which serves HTTP elsewhere, is not used to ask: its time limits are per read, so that a slow answer has
// no end; it keeps whatever headers a server sends; and a connection that breaks while it writes raises SIGPIPE in an
// application that is not ours.
#pragma once

#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/endpoint.h"
#include "common/status.h"

namespace mooncake {

struct HttpCall {
  Endpoint server;
  std::string_view method;  // "GET"
  std::string target;       // "/metadata?key=a%2Fb"
  std::string_view content_type;
  std::string_view body;
};
struct HttpAnswer {
  int code = 0;
  std::string body;
};

// METADATA_ERROR when no complete and well-formed answer of at most 96 MiB came before the deadline. Any code is an
// answer. Blocks; any thread.
Result<HttpAnswer> Call(const HttpCall& call, Deadline deadline);

// For messages: "http://host:port/target: "500": "...".
std::unexpected<Status> HttpError(const HttpCall& call, const HttpAnswer& answer);

// Everything but unreserved characters as %XX.
std::string UrlEscape(std::string_view text);

}  // namespace mooncake
