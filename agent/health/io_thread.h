// The one thread that waits for sockets and processes of health checks.
//
// It sleeps in epoll until something answers and has no timers: time is the wheel's. It is started
// by the first use, so an agent without such checks has none.
//
// Thread safety: all methods from any thread. Outlives the probes that use it.

#ifndef FAILBACK_AGENT_HEALTH_IO_THREAD_H_
#define FAILBACK_AGENT_HEALTH_IO_THREAD_H_

#include <memory>
#include <mutex>
#include <thread>

#include "boost/asio/executor_work_guard.hpp"
#include "boost/asio/io_context.hpp"

namespace failback {

class IoThread {
 public:
  IoThread() : work_(boost::asio::make_work_guard(context_)) {}
  ~IoThread() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;

  boost::asio::io_context& context() {
    std::call_once(started_, [this] { thread_ = std::thread([this] { context_.run(); }); });
    return context_;
  }

 private:
  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::once_flag started_;
  std::thread thread_;
};

}  // namespace failback

#endif  // FAILBACK_AGENT_HEALTH_IO_THREAD_H_
