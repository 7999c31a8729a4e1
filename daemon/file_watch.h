// Reports when files may have changed, through inotify: nothing is polled.
//
// What is watched are the folders, so that a file is noticed that is written in place, replaced by
// a rename, or reached through a symbolic link that is changed, as Kubernetes changes the `..data`
// of a ConfigMap. Links are followed when the watch is made: renew it after a change.
//
//   FileWatch watch({"/etc/failback/agent.yaml"});
//   if (signals.Wait(watch.fd()) == 0 && watch.Changed()) Reload();
//
// Thread safety: thread-compatible.

#ifndef FAILBACK_DAEMON_FILE_WATCH_H_
#define FAILBACK_DAEMON_FILE_WATCH_H_

#include <string>
#include <vector>

namespace failback {

class FileWatch {
 public:
  // Files that are not there are noticed when they come, if their folder is there. None: fd() is
  // -1.
  explicit FileWatch(const std::vector<std::string>& files);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  // Readable when something has happened in the folders; -1 when nothing can be watched.
  int fd() const { return fd_; }

  // Takes what has happened. True: look at the files, follow links again. There may be no
  // difference.
  bool Changed();

 private:
  void AddFolders();

  const std::vector<std::string> files_;
  int fd_ = -1;
};

}  // namespace failback

#endif  // FAILBACK_DAEMON_FILE_WATCH_H_
