# typed: strict
# frozen_string_literal: true

# Installs the archives of a release.
class Moeflux < Formula
  desc "Runs Mixture-of-Experts language models that are larger than memory"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    depends_on arch: :arm64

    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/moeflux-@VERSION@-aarch64-apple-darwin.tar.gz"
      sha256 "@SHA256:aarch64-apple-darwin.tar.gz@"
    end
  end

  on_linux do
    on_arm do
      url "@REPOSITORY@/releases/download/v@VERSION@/moeflux-@VERSION@-aarch64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256:aarch64-unknown-linux-gnu.tar.gz@"
    end
    on_intel do
      url "@REPOSITORY@/releases/download/v@VERSION@/moeflux-@VERSION@-x86_64-unknown-linux-gnu.tar.gz"
      sha256 "@SHA256:x86_64-unknown-linux-gnu.tar.gz@"
    end
  end

  def install
    bin.install "moeflux"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/moeflux.bash" => "moeflux"
    fish_completion.install "completions/moeflux.fish"
    zsh_completion.install "completions/_moeflux"
  end

  service do
    run [opt_bin/"moeflux", "serve", "--host", "127.0.0.1"]
    keep_alive successful_exit: false
    log_path var/"log/moeflux.log"
    error_log_path var/"log/moeflux.log"
  end

  test do
    ENV["MOEFLUX_CACHE"] = testpath/"cache"
    assert_match version.to_s, shell_output("#{bin}/moeflux --version")
    assert_equal "68", shell_output("#{bin}/moeflux run --quiet 'What is 23 + 45?'").strip
  end
end
