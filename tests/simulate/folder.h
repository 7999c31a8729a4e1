// A folder in memory for what a process keeps, and what becomes of it when the process is killed.
//
// Thread safety: none.

#ifndef FAILBACK_TESTS_SIMULATE_FOLDER_H_
#define FAILBACK_TESTS_SIMULATE_FOLDER_H_

#include <map>
#include <string>

namespace failback::simulate {

class Folder {
 public:
  // By name.
  using Files = std::map<std::string, std::string>;

  // `path` is made, and removed with the object.
  explicit Folder(std::string path);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  // What is in it now, as after a SIGKILL: what was written is there, synced or not.
  Files Read() const;
  // Makes it so again. `in_place`: the same files, as if nothing had been written since; else new
  // ones, as of a backup that is copied back.
  void Write(const Files& files, bool in_place) const;

 private:
  const std::string path_;
};

}  // namespace failback::simulate

#endif  // FAILBACK_TESTS_SIMULATE_FOLDER_H_
