// What happens to rows of activations between products: norms, rounding, rotation.
#pragma once

#include <cstdint>
#include <vector>

#include "packed_matrix.h"
#include "products.h"

namespace slipstream {

// Rows ready for products with weights of one format: bf16, or int8 in two parts with a scale a row.
// Memory is kept between steps.
class ActivationRows {
 public:
  // Makes room for rows of products with `w`.
  void fit(int rows, const PackedMatrix& w);

  // Writes a row of x, rounded to the format. Rows may be written by different threads.
  void write(int row, const float* x, int count);

  // Writes w * x / sqrt(mean(x^2) + eps).
  void write_norm(int row, const float* x, const float* weight, int count, float eps);

  int rows_in_panel() const { return rows_in_panel_; }

  Activations panel(int index) const {
    const int first = index * rows_in_panel_;
    return {data_.get() + first * parts_ * stride_, stride_, scales_.data() + first};
  }

 private:
  // Rounds values(i, lanes), 16 at a time.
  template <class Values>
  void round_row(int row, int count, const Values& values);

  // Where a row's (high) part begins; a low part lies rows_in_panel_ rows further on.
  std::byte* target(int row) {
    const int panel = row / rows_in_panel_, within = row % rows_in_panel_;
    return data_.get() + (int64_t(panel) * parts_ * rows_in_panel_ + within) * stride_;
  }

  // On cache lines: a row of a tile that crosses one is loaded at half the speed.
  Bytes data_;
  size_t size_ = 0;
  std::vector<float> scales_;
  int64_t stride_ = 0;
  int parts_ = 1;
  int rows_in_panel_ = 1;
};

// y = w * x / sqrt(mean(x^2) + eps). y may be x.
void rms_norm(const float* x, const float* weight, int count, float eps, float* y);

// Rotary embedding of one head, half-split form: y = x cos + (-x2, x1) sin with x = (x1, x2).
void rotate(float* x, const uint16_t* cos, const uint16_t* sin, int head_dim);

// y = x, rounded.
void to_bf16(const float* x, int count, uint16_t* y);

// One side of pairs [count][2] = x, rounded.
void to_side_of_pairs(const float* x, int count, int side, uint16_t* pairs);

}  // namespace slipstream
