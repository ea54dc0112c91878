#pragma once

#include <cstdint>
#include <vector>

#include "packed_matrix.h"

namespace slipstream {

// Reads so many bytes of huge pages once, on all threads. Returns a sum, so that it happens.
int64_t read_memory(int64_t num_bytes);

// Multiplies rows of zeros with one matrix after another, on all threads and without waiting for
// each other. Returns the bytes of the matrices.
int64_t multiply_all(const std::vector<const PackedMatrix*>& matrices, int rows);

}  // namespace slipstream
