# The archives of a release as a package of Nix.
{
  description = "moeflux runs Mixture-of-Experts language models that are larger than memory";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      version = "@VERSION@";
      # SHA-256 of the archive for each system.
      archives = {
        x86_64-linux = {
          target = "x86_64-unknown-linux-gnu";
          sha256 = "@SHA256:x86_64-unknown-linux-gnu.tar.gz@";
        };
        aarch64-linux = {
          target = "aarch64-unknown-linux-gnu";
          sha256 = "@SHA256:aarch64-unknown-linux-gnu.tar.gz@";
        };
        aarch64-darwin = {
          target = "aarch64-apple-darwin";
          sha256 = "@SHA256:aarch64-apple-darwin.tar.gz@";
        };
      };
      package =
        system: archive:
        let
          pkgs = nixpkgs.legacyPackages.${system};
          lib = pkgs.lib;
          isLinux = pkgs.stdenv.hostPlatform.isLinux;
        in
        pkgs.stdenv.mkDerivation {
          pname = "moeflux";
          inherit version;
          src = pkgs.fetchurl {
            url = "@REPOSITORY@/releases/download/v${version}/moeflux-${version}-${archive.target}.tar.gz";
            inherit (archive) sha256;
          };
          nativeBuildInputs = [
            pkgs.installShellFiles
          ]
          ++ lib.optionals isLinux [
            pkgs.autoPatchelfHook
            pkgs.makeWrapper
          ];
          dontConfigure = true;
          dontBuild = true;
          dontStrip = true;
          installPhase = ''
            runHook preInstall
            install -D -m 755 moeflux $out/bin/moeflux
            installManPage man/*.1
            installShellCompletion --bash --name moeflux completions/moeflux.bash
            installShellCompletion --fish completions/moeflux.fish
            installShellCompletion --zsh completions/_moeflux
            runHook postInstall
          '';
          # The program opens the Vulkan loader by name.
          postFixup = lib.optionalString isLinux ''
            wrapProgram $out/bin/moeflux --suffix LD_LIBRARY_PATH : ${lib.makeLibraryPath [ pkgs.vulkan-loader ]}
          '';
          meta = {
            description = "Runs Mixture-of-Experts language models that are larger than memory";
            homepage = "@REPOSITORY@";
            license = [
              lib.licenses.mit
              lib.licenses.asl20
            ];
            mainProgram = "moeflux";
            platforms = builtins.attrNames archives;
            sourceProvenance = [ lib.sourceTypes.binaryNativeCode ];
          };
        };
    in
    {
      packages = builtins.mapAttrs (system: archive: { default = package system archive; }) archives;
    };
}
