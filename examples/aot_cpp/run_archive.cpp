// Runs an archive that `taso-py optimize MODEL --output DIR --emit aot` wrote: DIR/model.aot.pt2.
//
// Usage: run_archive ARCHIVE SIZES... -- one float32 input of ones for each list of sizes, such as 1x3x224x224.
// Prints the sizes and the sum of each result, and the median time of a call.
//
// An archive is for the release of PyTorch and the kind of processor that it was compiled with; its metadata, printed
// first, says which. It does not check its inputs unless AOTI_RUNTIME_CHECK_INPUTS=1 is set.
//
//   cmake -S examples/aot_cpp -B build/aot_cpp -DCMAKE_BUILD_TYPE=Release
//         -DCMAKE_PREFIX_PATH="$(python -c 'import torch; print(torch.utils.cmake_prefix_path)')"
//   cmake --build build/aot_cpp && build/aot_cpp/run_archive DIR/model.aot.pt2 1x3x224x224

#include <algorithm>
#include <chrono>
#include <exception>
#include <iostream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/torch.h>

namespace {

using Loader = torch::inductor::AOTIModelPackageLoader;

constexpr int kCalls = 50;

std::vector<int64_t> sizes_of(const std::string& text) {
  std::vector<int64_t> sizes;
  std::stringstream stream(text);
  for (std::string size; std::getline(stream, size, 'x');) {
    sizes.push_back(std::stoll(size));
  }
  return sizes;
}

double seconds_of_call(Loader& loader, const std::vector<at::Tensor>& inputs) {
  const auto begin = std::chrono::steady_clock::now();
  loader.run(inputs);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Prints an archive's metadata; throws before any of its code runs if another release of PyTorch compiled it.
void check(const std::string& archive) {
  std::string release;
  for (const auto& [key, value] : Loader::load_metadata_from_package(archive, "model")) {
    std::cout << key << ": " << value << '\n';
    release = key == "TASO_PY_TORCH" ? value : release;
  }
  if (release != TORCH_VERSION) {
    throw std::runtime_error("compiled by PyTorch " + release + ", and this is " TORCH_VERSION);
  }
}

void run(const std::string& archive, const std::vector<at::Tensor>& inputs) {
  Loader loader(archive);
  for (const at::Tensor& result : loader.run(inputs)) {
    if (result.defined()) {
      std::cout << "result " << result.sizes() << ", sum " << result.sum().item<double>() << '\n';
    } else {
      std::cout << "result None\n";
    }
  }
  std::vector<double> seconds(kCalls);
  std::generate(seconds.begin(), seconds.end(), [&] { return seconds_of_call(loader, inputs); });
  std::nth_element(seconds.begin(), seconds.begin() + kCalls / 2, seconds.end());
  std::cout << "median of " << kCalls << " calls: " << seconds[kCalls / 2] * 1e6 << " us\n";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: " << argv[0] << " ARCHIVE SIZES...\n";
    return 2;
  }
  const c10::InferenceMode no_gradients;
  try {
    std::vector<at::Tensor> inputs;
    for (int place = 2; place < argc; ++place) {
      inputs.push_back(torch::ones(sizes_of(argv[place])));
    }
    check(argv[1]);
    run(argv[1], inputs);
  } catch (const c10::Error& error) {
    std::cerr << argv[1] << ": " << error.what_without_backtrace() << '\n';
    return 1;
  } catch (const std::exception& error) {
    std::cerr << argv[1] << ": " << error.what() << '\n';
    return 1;
  }
  return 0;
}
