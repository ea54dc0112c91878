// AMX tiles are configured before they are used, and released so that threads switch cheaply.
#pragma once

namespace slipstream {

// While it lives, this thread's tiles 0, 1 and 4 have the first 16 of `rows` rows, 2, 3 and 5 the
// others, and 6 and 7 have 16; all rows have 64 bytes. Does nothing on a CPU without AMX.
class TileScope {
 public:
  explicit TileScope(int rows);
  ~TileScope();

  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  bool configured_;
};

constexpr int kAllTileRows = 32;

}  // namespace slipstream
