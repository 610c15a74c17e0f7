// Process metrics in Prometheus form. A thin door to prometheus-cpp so that its headers stay in one file.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace mooncake {

using MetricLabels = std::map<std::string, std::string>;

// Monotone count. Any thread; lives as long as its registry.
class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(uint64_t n = 1) = 0;
  virtual uint64_t Value() const = 0;
};

// A value that goes up and down. Any thread; lives as long as its registry.
class Gauge {
 public:
  virtual ~Gauge() = default;
  virtual void Set(double value) = 0;
};

// Owns every metric of one store or master; names and labels as in docs/. Asking twice returns the same object. Any
// thread.
class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  MetricRegistry(const MetricRegistry&) = delete;
  MetricRegistry& operator=(const MetricRegistry&) = delete;

  Counter& GetCounter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Gauge& GetGauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  // Prometheus text exposition format.
  std::string Serialize() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mooncake
