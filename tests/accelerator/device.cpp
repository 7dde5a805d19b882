// A device of torch's that has no hardware: two devices on the CPU's memory, with a caching allocator.
//
// torch takes it for an accelerator like any other: the autograd engine runs its backward in a thread per device,
// memory comes from an allocator with counters and a limit, and an operator never sees the CPU's tensors beside it.
// Operators are computed by the CPU's kernels, on copies.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <vector>

namespace {

constexpr auto kType = c10::DeviceType::PrivateUse1;
constexpr c10::DeviceIndex kDevices = 2;
constexpr size_t kRounding = 512;
thread_local c10::DeviceIndex current_device = 0;
std::atomic<size_t> workspace_bytes = 0;
// What profilers are told that this is: c10's legacy one knows the memory of CUDA devices alone.
std::atomic<c10::DeviceType> told_type = kType;

// ---- memory

struct Block {
  size_t size;
  c10::DeviceIndex device;
  bool in_other_stream = false;
};

struct Pool {
  size_t capacity = size_t{1} << 30;
  std::multimap<size_t, void*> cached;
  std::set<void*> waiting;  // freed, but a stream may still use them: active, not allocated
  std::vector<int64_t> levels;  // what was allocated after each event
  c10::CachingDeviceAllocator::DeviceStats stats;
};

constexpr size_t kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

class CachingAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t asked) override {
    const c10::Device device(kType, current_device);
    if (asked == 0) return {nullptr, device};
    std::lock_guard<std::mutex> lock(mutex_);
    Pool& pool = pools_[current_device];
    const size_t rounded = (asked + kRounding - 1) / kRounding * kRounding;
    void* memory = from_cache(pool, rounded);
    if (!memory) memory = from_device(pool, rounded, asked);
    const size_t size = blocks_.at(memory).size;
    pool.stats.allocation[kAll].increase(1);
    pool.stats.allocated_bytes[kAll].increase(size);
    pool.stats.active_bytes[kAll].increase(size);
    pool.stats.requested_bytes[kAll].increase(asked);
    tell(memory, static_cast<int64_t>(size), pool, current_device);
    pool.levels.push_back(pool.stats.allocated_bytes[kAll].current);
    return {memory, memory, &CachingAllocator::give_back, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &CachingAllocator::give_back; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& pool : pools_) release_cached(pool);
  }
  void recordStream(const c10::DataPtr& data, c10::Stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto block = blocks_.find(data.get());
    if (block != blocks_.end()) block->second.in_other_stream = true;
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return pools_[device].stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& stats = pools_[device].stats;
    for (auto* one : {&stats.allocated_bytes, &stats.active_bytes, &stats.reserved_bytes}) (*one)[kAll].reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    std::lock_guard<std::mutex> lock(mutex_);
    return {left(pools_[device]), pools_[device].capacity};
  }

  void set_capacity(c10::DeviceIndex device, size_t capacity) {
    std::lock_guard<std::mutex> lock(mutex_);
    pools_[device].capacity = capacity;
  }
  std::vector<int64_t> take_levels(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(pools_[device].levels, {});
  }
  // What other streams did with memory that was freed is over.
  void streams_are_over(c10::DeviceIndex device) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (void* memory : pools_[device].waiting) cache(pools_[device], memory);
    pools_[device].waiting.clear();
  }

 private:
  static void give_back(void* memory);

  static void tell(void* memory, int64_t bytes, const Pool& pool, c10::DeviceIndex device) {
    c10::reportMemoryUsageToProfiler(
        memory, bytes, pool.stats.allocated_bytes[kAll].current, reserved(pool), c10::Device(told_type, device));
  }

  static size_t reserved(const Pool& pool) { return pool.stats.reserved_bytes[kAll].current; }
  static size_t left(const Pool& pool) {
    return pool.capacity > reserved(pool) ? pool.capacity - reserved(pool) : 0;
  }

  // A cached block may be up to a quarter larger than what is asked for.
  void* from_cache(Pool& pool, size_t size) {
    const auto fitting = pool.cached.lower_bound(size);
    if (fitting == pool.cached.end() || fitting->first > size + size / 4) return nullptr;
    void* memory = fitting->second;
    pool.cached.erase(fitting);
    return memory;
  }

  void* from_device(Pool& pool, size_t size, size_t asked) {
    if (left(pool) < size) {
      pool.stats.num_alloc_retries += 1;
      release_cached(pool);
    }
    if (left(pool) < size) {
      pool.stats.num_ooms += 1;
      TORCH_CHECK_WITH(
          OutOfMemoryError, false, "ACCEL out of memory. Tried to allocate ", asked / 1024.0, " KiB. GPU ",
          int(current_device), " has a total capacity of ", pool.capacity / 1024.0, " KiB of which ",
          left(pool) / 1024.0, " KiB is free.");
    }
    void* memory = std::aligned_alloc(64, size);
    blocks_[memory] = Block{size, current_device};
    pool.stats.num_device_alloc += 1;
    pool.stats.reserved_bytes[kAll].increase(size);
    return memory;
  }

  void release_cached(Pool& pool) {
    for (const auto& [size, memory] : pool.cached) {
      pool.stats.num_device_free += 1;
      pool.stats.reserved_bytes[kAll].decrease(size);
      blocks_.erase(memory);
      std::free(memory);
    }
    pool.cached.clear();
  }

  void free_block(void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    Block& block = blocks_.at(memory);
    Pool& pool = pools_[block.device];
    pool.stats.allocation[kAll].decrease(1);
    pool.stats.allocated_bytes[kAll].decrease(block.size);
    tell(memory, -static_cast<int64_t>(block.size), pool, block.device);
    pool.levels.push_back(pool.stats.allocated_bytes[kAll].current);
    if (block.in_other_stream) {
      pool.waiting.insert(memory);
    } else {
      cache(pool, memory);
    }
  }

  void cache(Pool& pool, void* memory) {
    Block& block = blocks_.at(memory);
    block.in_other_stream = false;
    pool.stats.active_bytes[kAll].decrease(block.size);
    pool.cached.emplace(block.size, memory);
  }

  std::mutex mutex_;
  std::array<Pool, kDevices> pools_;
  std::unordered_map<void*, Block> blocks_;
};

// Never destroyed: tensors may outlive everything.
CachingAllocator& allocator() {
  static auto* const only = new CachingAllocator();
  return *only;
}

void CachingAllocator::give_back(void* memory) { allocator().free_block(memory); }

// ---- devices, streams and events: work is over when it is submitted

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream(c10::DeviceIndex index) {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(kType, index));
  }

  c10::DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current_device}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current_device = device.index();
  }
  c10::Device exchangeDevice(c10::Device device) const override {
    const auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  c10::Stream getStream(c10::Device device) const override {
    return stream(device.has_index() ? device.index() : current_device);
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex index) const override { allocator().streams_are_over(index); }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    allocator().recordStream(data, stream);
  }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_device = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    return std::exchange(current_device, index);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr data = allocator().allocate(bytes);
    if (const size_t kept = std::min(bytes, storage.nbytes())) std::memcpy(data.get(), storage.data(), kept);
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
    storage.unsafeGetStorageImpl()->set_nbytes(bytes);
  }
};

// ---- operators

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_generic(
      size, &allocator(), kKeys, c10::dtype_or_default(dtype), format));
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::Tensor(at::detail::empty_strided_generic(
      size, stride, &allocator(), kKeys, c10::dtype_or_default(dtype)));
}

// The same memory as a tensor of the CPU's.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_privateuseone()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(at::kCPU));
}

// Memory that an operator takes for itself, and gives back before it returns: as large as was asked for, or as this.
c10::DataPtr workspace(const at::Tensor& like, bool always) {
  const c10::DeviceGuard guard(like.device());
  return allocator().allocate(workspace_bytes != 0 ? workspace_bytes.load() : always ? like.nbytes() : 0);
}

// As on a GPU, what goes to another device lies in one piece before.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  const bool is_laid_out = from.is_privateuseone() && from.device() != to.device() && !from.is_contiguous();
  on_cpu(to).copy_(on_cpu(is_laid_out ? from.contiguous() : from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& tensor) { return on_cpu(tensor).item(); }

at::Tensor& set_empty(at::Tensor& tensor) {
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true));
  return tensor.set_(std::move(storage), 0, {0}, {});
}

void record_stream(at::Tensor& tensor, c10::Stream stream) {
  allocator().recordStream(tensor.storage().data_ptr(), stream);
}

at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups) {
  const auto taken = workspace(input, true);
  const auto bias_on_cpu = bias.has_value() ? std::optional(on_cpu(*bias)) : std::nullopt;
  return at::convolution(on_cpu(input), on_cpu(weight), bias_on_cpu, stride, padding, dilation, transposed,
                         output_padding, groups)
      .to(input.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& weight, at::IntArrayRef stride,
    at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed, at::IntArrayRef output_padding,
    int64_t groups, std::array<bool, 3> mask) {
  const auto taken = workspace(input, true);
  const std::vector<int64_t> bias_sizes{gradient.size(1)};
  auto [of_input, of_weight, of_bias] = at::convolution_backward(
      on_cpu(gradient), on_cpu(input), on_cpu(weight), bias_sizes, stride, padding, dilation, transposed,
      output_padding, groups, mask);
  const auto back = [&](const at::Tensor& one) { return one.defined() ? one.to(input.device()) : one; };
  return {back(of_input), back(of_weight), back(of_bias)};
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

// Matrix products.
void on_the_cpu_with_workspace(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto taken = workspace(torch::jit::peek(stack, 0, op.schema().arguments().size()).toTensor(), false);
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>());
}

// Half as precise, half as large: what matters most under torch.autocast.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(softmax, int, fp32)
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("resize_", TORCH_FN(at::native::resize_));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("set_.source_Storage", TORCH_FN(at::native::set_));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(at::native::set_storage_cpu_));
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("record_stream", TORCH_FN(record_stream));
  for (const auto* name : {"mm", "bmm", "addmm"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_the_cpu_with_workspace>());
  }
  m.impl("convolution_overrideable", TORCH_FN(convolution));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

const bool is_registered = [] {
  c10::SetAllocator(kType, &allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

// What has no function in torch: tests call it by ctypes.
extern "C" void accel_set_capacity(int device, uint64_t bytes) {
  allocator().set_capacity(static_cast<c10::DeviceIndex>(device), bytes);
}
extern "C" uint64_t accel_take_levels(int device, int64_t* to, uint64_t most) {
  const auto levels = allocator().take_levels(static_cast<c10::DeviceIndex>(device));
  std::copy_n(levels.begin(), std::min<uint64_t>(levels.size(), most), to);
  return levels.size();
}
extern "C" void accel_tell_as_cuda(bool cuda) { told_type = cuda ? c10::DeviceType::CUDA : kType; }
extern "C" void accel_set_workspace(uint64_t bytes) { workspace_bytes = bytes; }
