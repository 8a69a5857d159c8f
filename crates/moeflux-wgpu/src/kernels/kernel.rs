//! What a kernel is: a WGSL file, the constants it is compiled with, the texts it includes and
//! the buffers it binds.

/// How many constants a kernel may have.
const MAX_CONSTANTS: usize = 21;

/// Constants by name, as the template reads them.
pub(super) type NamedConstants = Vec<(&'static str, u32)>;

/// A text that is put before the kernel's own, or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Include {
    /// Sums over the first `threads` threads (a number or a constant's name) of a workgroup.
    Reduce { kind: &'static str, threads: &'static str },
    /// Quantisation of activations.
    Quantize,
    /// The same, to two places.
    QuantizeTwice,
    /// Quantisation of what a workgroup of 64 threads has just written.
    QuantizeOwn,
    /// Decoders of weights.
    WeightFormats,
    /// Index keys, and where they are.
    IndexKeys,
    /// Decoders of keys and values.
    KvFormats,
    /// Tiles of keys and values, and their softmax.
    KvTiles,
    /// Which positions a row attends to, and where its outputs go.
    Visibility,
    /// Sums of the delta rule.
    DeltaSums,
    /// How much stays of the states of the gated delta rule.
    DeltaDecay,
    /// Activations of experts computed and quantised inside the down projection.
    FusedActivation,
    /// The activation function between an expert's projections.
    Activation,
    /// The multiplication of quantised inputs, or of plain ones where `DIGITS` is 0.
    MatvecMultiply,
    /// The multiplication of plain inputs, in a kernel that also has the other one.
    MatvecMultiplyPlain,
}

/// A variation of a kernel's text that does not depend on its constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// It reads which experts the device chose.
    Chosen,
    /// It computes the activations that it multiplies.
    Activates,
    /// It multiplies quantised and plain inputs.
    Both,
    /// It writes all workgroup memory before reading it, so nothing has to be zeroed.
    WritesFirst,
}

/// The parts of a kernel that are the same for all its constants.
#[derive(Debug)]
pub(crate) struct KernelInfo {
    /// Unique among kernels.
    pub(crate) name: &'static str,
    pub(super) source: &'static str,
    /// One letter for each binding after the parameters: `r` read-only, `w` read and written.
    pub(crate) bindings: &'static str,
    pub(super) constants: &'static [&'static [&'static str]],
    pub(super) includes: &'static [Include],
    pub(super) features: &'static [Feature],
    /// Constants that follow from the others.
    pub(super) derived: fn(&NamedConstants) -> NamedConstants,
}

/// Values of a kernel's constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Values {
    words: [u32; MAX_CONSTANTS],
    n: usize,
}

impl Values {
    pub(super) fn push(&mut self, value: u32) {
        self.words[self.n] = value;
        self.n += 1;
    }
}

/// Constants that several kernels have in common.
pub(super) trait Constants: Copy {
    const NAMES: &'static [&'static str];

    fn put(&self, values: &mut Values);
}

/// A kernel with its constants as named fields.
pub(crate) trait Kernel: Copy {
    const INFO: &'static KernelInfo;

    fn put(&self, values: &mut Values);
}

/// A kernel and the values of its constants: what one pipeline is compiled from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    pub(crate) info: &'static KernelInfo,
    values: Values,
}

impl<K: Kernel> From<K> for Variant {
    fn from(kernel: K) -> Variant {
        let mut values = Values::default();
        kernel.put(&mut values);
        Variant { info: K::INFO, values }
    }
}

impl PartialEq for Variant {
    fn eq(&self, other: &Variant) -> bool {
        self.values == other.values && self.info.name == other.info.name
    }
}

impl Eq for Variant {}

impl std::hash::Hash for Variant {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.info.name.hash(state);
        self.values.hash(state);
    }
}

impl Variant {
    /// A kernel by the values of its constants, in the order of its declaration.
    #[cfg(test)]
    pub(crate) fn with_values<K: Kernel>(words: &[u32]) -> Variant {
        let mut values = Values::default();
        words.iter().for_each(|word| values.push(*word));
        Variant { info: K::INFO, values }
    }

    /// The values of the first two constants, 0 for those that the kernel lacks.
    #[cfg(test)]
    pub(crate) fn first_values(&self) -> [u32; 2] {
        [self.values.words[0], self.values.words[1]]
    }

    /// Whether the kernel writes all workgroup memory before reading it.
    pub(crate) fn writes_first(&self) -> bool {
        self.info.features.contains(&Feature::WritesFirst)
    }

    /// The constants by name.
    pub(super) fn constants(&self) -> NamedConstants {
        let names = self.info.constants.concat();
        assert_eq!(names.len(), self.values.n, "constants of {}", self.info.name);
        names.into_iter().zip(self.values.words).collect()
    }
}

/// No constants follow from others.
pub(super) fn nothing(_: &NamedConstants) -> NamedConstants {
    Vec::new()
}

/// Declares constants that several kernels have in common: a field and its name in WGSL.
macro_rules! constants {
    ($(#[$meta:meta])* $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty = $constant:ident,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            $($(#[$field_meta])* pub(crate) $field: $type,)*
        }

        impl $crate::kernels::kernel::Constants for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($constant)),*];

            fn put(&self, values: &mut $crate::kernels::kernel::Values) {
                $(values.push(u32::from(self.$field));)*
            }
        }
    };
}

/// Declares a kernel: its file, bindings, includes, features and derived constants; groups of
/// common constants, then its own constants with their names in WGSL.
macro_rules! kernel {
    ($(#[$meta:meta])* $name:ident in $file:literal($bindings:literal)
        $(include [$($include:expr),*])? $(feature [$($feature:ident),*])? $(derived $derived:path)?;
        { $($group:ident: $group_type:ty,)* }
        { $($(#[$field_meta:meta])* $field:ident: $type:ty = $constant:ident,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name {
            $(pub(crate) $group: $group_type,)*
            $($(#[$field_meta])* pub(crate) $field: $type,)*
        }

        impl $crate::kernels::kernel::Kernel for $name {
            const INFO: &'static $crate::kernels::kernel::KernelInfo =
                &$crate::kernels::kernel::KernelInfo {
                    name: stringify!($name),
                    source: include_str!(concat!("../shaders/", $file, ".wgsl")),
                    bindings: $bindings,
                    constants: &[
                        $(<$group_type as $crate::kernels::kernel::Constants>::NAMES,)*
                        &[$(stringify!($constant)),*],
                    ],
                    includes: &[$($($include),*)?],
                    features: &[$($($crate::kernels::kernel::Feature::$feature),*)?],
                    derived: $crate::kernels::kernel::first!($($derived,)? $crate::kernels::kernel::nothing),
                };

            fn put(&self, values: &mut $crate::kernels::kernel::Values) {
                $($crate::kernels::kernel::Constants::put(&self.$group, values);)*
                $(values.push(u32::from(self.$field));)*
                let _ = values;
            }
        }
    };
}

/// The first of one or two paths.
macro_rules! first {
    ($first:path $(, $rest:path)?) => {
        $first
    };
}

pub(crate) use constants;
pub(crate) use first;
pub(crate) use kernel;
