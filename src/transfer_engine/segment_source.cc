// Asking peers and metadata servers for descriptors.
#include "transfer_engine/segment_source.h"

#include "protocol/methods.h"
#include "transfer_engine/engine_messages.h"

namespace mooncake {
namespace {

Result<SegmentPtr> FromReply(const Result<std::string>& body, const std::string& name, const SegmentPtr& known) {
  if (!body) {
    return Error(ErrorCode::SEGMENT_NOT_FOUND, "no transfer engine answers to '{}': {}", name, body.error().ToString());
  }
  const DescribeReply reply = MC_TRY(rpc::Decode<DescribeReply>(*body));
  if (reply.segment.empty() && known != nullptr) return known;
  auto segment = DecodeSegment(reply.segment);
  if (!segment) return Annotate(segment.error(), fmt::format("descriptor of '{}'", name));
  return std::make_shared<const SegmentDescriptor>(std::move(*segment));
}

Result<SegmentPtr> FromStore(MetadataStore& store, const std::string& name) {
  const auto text = MC_TRY(store.Get(SegmentKey(name), Deadline::After(kSegmentLookupTimeout)));
  if (!text) return Error(ErrorCode::SEGMENT_NOT_FOUND, "the metadata server knows no segment '{}'", name);
  auto segment = DecodeSegment(*text);
  if (!segment) return Annotate(segment.error(), fmt::format("descriptor of '{}'", name));
  return std::make_shared<const SegmentDescriptor>(std::move(*segment));
}

}  // namespace

void PeerSegments::Fetch(const std::string& name, SegmentPtr known, SegmentCompletion done) {
  const auto peer = Endpoint::Parse(name);
  if (!peer || peer->port == 0) {
    return done(Error(ErrorCode::INVALID_PARAMS, "segment '{}' is no host:port", name));
  }
  DescribeRequest request;
  if (known != nullptr) request = {.generation = known->generation, .revision = known->revision};
  links_.CallAnyone(*peer, protocol::kEngineDescribe, rpc::Encode(request), Deadline::After(kSegmentLookupTimeout),
                    [name, known = std::move(known), done = std::move(done)](Result<std::string> body) mutable {
                      done(FromReply(body, name, known));
                    });
}

void PublishedSegments::Fetch(const std::string& name, SegmentPtr, SegmentCompletion done) {
  const auto shared = std::make_shared<SegmentCompletion>(std::move(done));  // of whoever gets to call it
  std::move_only_function<void()> task = [this, name, shared] { (*shared)(FromStore(store_, name)); };
  if (workers_.TrySubmit(task)) return;
  (*shared)(Error(ErrorCode::TOO_MANY_REQUESTS, "too many look-ups wait already: '{}' is not looked up", name));
}

}  // namespace mooncake
