// Memory in huge pages: with small ones a core waits for page tables half of the time that it
// reads weights.
#pragma once

#include <cstddef>
#include <memory>

namespace slipstream {

using Bytes = std::shared_ptr<std::byte>;

// Returns zeroed memory, aligned to 64 bytes, out of chunks that are shared by all callers. A chunk
// is freed with the last piece of it. Throws std::bad_alloc.
Bytes allocate_huge(size_t size);

}  // namespace slipstream
