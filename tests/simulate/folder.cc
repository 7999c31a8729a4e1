#include "tests/simulate/folder.h"

#include <filesystem>
#include <fstream>
#include <utility>

namespace failback::simulate {

Folder::Folder(std::string path) : path_(std::move(path)) {
  std::filesystem::create_directories(path_);
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Folder::Files Folder::Read() const {
  Files files;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    const std::string name = entry.path().filename();
    // Shared memory of SQLite's, which no process has after a crash.
    if (!entry.is_regular_file() || name.find("-shm") != std::string::npos) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    std::string& bytes = files[name];
    bytes.resize(entry.file_size());
    in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  return files;
}

void Folder::Write(const Files& files, bool in_place) const {
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    if (!in_place || files.count(entry.path().filename()) == 0) {
      std::filesystem::remove(entry.path());
    }
  }
  for (const auto& [name, bytes] : files) {
    std::ofstream out(path_ + "/" + name, std::ios::binary | std::ios::trunc);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
}

}  // namespace failback::simulate
