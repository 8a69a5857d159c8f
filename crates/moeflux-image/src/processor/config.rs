//! Parameters from published `preprocessor_config.json` and `processor_config.json`.

use serde_json::{Map, Value};

use super::parameters::{Levels, Parameters, ValueOrder};
use super::rule::SizeRule;
use crate::error::ConfigError;

/// The longer side as a multiple of the shorter one, where published rules limit it.
const MAX_RATIO: u32 = 200;

const HALF: [f32; 3] = [0.5; 3];
/// Of the pictures that CLIP was trained on.
const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
const CLIP_DEVIATION: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// The index of bicubic interpolation in Pillow.
const BICUBIC: u64 = 3;

/// The class of a processor without the suffix of its variant: `image_processor_type`, or else
/// `processor_class`, which name the same rules.
#[derive(Clone, Copy)]
enum Class {
    Qwen2Vl,
    Glm4v,
    Gemma4,
    KimiK25,
    Glm5Next,
}

impl Class {
    const NAMES: [(&str, Self); 15] = [
        ("Qwen2VLImageProcessor", Self::Qwen2Vl),
        ("Qwen3VLImageProcessor", Self::Qwen2Vl),
        ("Qwen3VLProcessor", Self::Qwen2Vl),
        ("Glm4vImageProcessor", Self::Glm4v),
        ("Glm46VImageProcessor", Self::Glm4v),
        ("Glm4vProcessor", Self::Glm4v),
        ("Glm46VProcessor", Self::Glm4v),
        ("Gemma4ImageProcessor", Self::Gemma4),
        ("Gemma4Processor", Self::Gemma4),
        ("KimiK25ImageProcessor", Self::KimiK25),
        ("KimiK25VisionProcessor", Self::KimiK25),
        ("KimiK25Processor", Self::KimiK25),
        ("Glm5NextImageProcessor", Self::Glm5Next),
        ("Glm5NextVLProcessor", Self::Glm5Next),
        ("Glm5NextProcessor", Self::Glm5Next),
    ];

    fn of(name: &str) -> Option<Self> {
        let name = name.strip_suffix("Fast").unwrap_or(name);
        Self::NAMES.iter().find(|row| row.0 == name).map(|row| row.1)
    }
}

pub(super) fn parameters(file: &Value) -> Result<Parameters, ConfigError> {
    let object = |value: &Value, path: &str| match value {
        Value::Object(object) => Ok(object.clone()),
        value => Err(ConfigError::new(path, value, "write an object")),
    };
    let whole = Keys { object: object(file, "preprocessor_config.json")?, path: String::new() };
    let (keys, of_whole) = match whole.get("image_processor") {
        Some(inner) => {
            let inner = object(inner, "image_processor")?;
            (Keys { object: inner, path: String::from("image_processor.") }, Some(&whole))
        }
        None => (whole.clone(), None),
    };
    if let Some(inner) = keys.get("media_proc_cfg") {
        let path = format!("{}media_proc_cfg", keys.path);
        let inner = object(inner, &path)?;
        return patch_limit(&Keys { object: inner, path: format!("{path}.") });
    }
    match class(&keys, of_whole)? {
        Class::Qwen2Vl => by_area(&keys, &ONE_FRAME),
        Class::Glm4v => by_area(&keys, &TWO_FRAMES),
        Class::Gemma4 => token_budget(&keys),
        Class::KimiK25 => patch_limit(&keys),
        Class::Glm5Next => canvas(&keys),
    }
}

/// The class that a file names; the first name that is known decides.
fn class(keys: &Keys, whole: Option<&Keys>) -> Result<Class, ConfigError> {
    let objects = [Some(keys), whole].into_iter().flatten();
    let names = ["image_processor_type", "processor_class"];
    let mut unknown = None;
    for (keys, name) in objects.flat_map(|keys| names.map(|name| (keys, name))) {
        let Some(value) = keys.get(name) else { continue };
        if let Some(class) = value.as_str().and_then(Class::of) {
            return Ok(class);
        }
        unknown = unknown.or_else(|| Some((format!("{}{name}", keys.path), value.to_string())));
    }
    let missing = || (format!("{}image_processor_type", keys.path), String::from("missing"));
    let (key, value) = unknown.unwrap_or_else(missing);
    let names: Vec<&str> = Class::NAMES.iter().map(|row| row.0).collect();
    let known = names.into_iter().filter(|name| name.ends_with("ImageProcessor"));
    let known: Vec<&str> = known.collect();
    Err(ConfigError::new(key, value, format!("known are {}", known.join(", "))))
}

/// What the processors by area have where a file is silent.
struct AreaDefaults {
    patch_size: usize,
    min_pixels: usize,
    max_pixels: usize,
    mean: [f32; 3],
    deviation: [f32; 3],
    counted_frames: usize,
    grows_short_sides: bool,
}

/// As the files of Qwen3-VL and later models.
const ONE_FRAME: AreaDefaults = AreaDefaults {
    patch_size: 16,
    min_pixels: 65_536,
    max_pixels: 16_777_216,
    mean: HALF,
    deviation: HALF,
    counted_frames: 1,
    grows_short_sides: false,
};

/// As the files of GLM-4.5V and GLM-4.6V.
const TWO_FRAMES: AreaDefaults = AreaDefaults {
    patch_size: 14,
    min_pixels: 12_544,
    max_pixels: 9_633_792,
    mean: CLIP_MEAN,
    deviation: CLIP_DEVIATION,
    counted_frames: 2,
    grows_short_sides: true,
};

fn by_area(keys: &Keys, defaults: &AreaDefaults) -> Result<Parameters, ConfigError> {
    keys.check_steps(true)?;
    let size = keys.inner("size")?;
    let pixels = |edge: &str, key: &str, default: usize| {
        let of_size = size.as_ref().map_or(Ok(default), |size| size.number(edge, default))?;
        keys.number(key, of_size)
    };
    let rule = SizeRule::Area {
        min_pixels: pixels("shortest_edge", "min_pixels", defaults.min_pixels)?,
        max_pixels: pixels("longest_edge", "max_pixels", defaults.max_pixels)?,
        counted_frames: defaults.counted_frames,
        grows_short_sides: defaults.grows_short_sides,
        max_ratio: MAX_RATIO,
    };
    Ok(Parameters {
        patch_size: keys.number("patch_size", defaults.patch_size)?,
        merge_size: keys.number("merge_size", 2)?,
        n_frames: keys.number("temporal_patch_size", 2)?,
        rule,
        levels: keys.levels(defaults.mean, defaults.deviation)?,
        order: ValueOrder::TokensThenChannels,
    })
}

/// As the files of Gemma-4. Their `size` means nothing.
fn token_budget(keys: &Keys) -> Result<Parameters, ConfigError> {
    keys.check_steps(false)?;
    Ok(Parameters {
        patch_size: keys.number("patch_size", 16)?,
        merge_size: keys.number("pooling_kernel_size", 3)?,
        n_frames: 1,
        rule: SizeRule::TokenBudget { tokens: keys.number("max_soft_tokens", 280)? },
        levels: Levels::Unit,
        order: ValueOrder::RowsChannelsLast,
    })
}

/// As the files of Kimi K2.5, in the publisher's spelling and in that of transformers.
fn patch_limit(keys: &Keys) -> Result<Parameters, ConfigError> {
    keys.check_steps(true)?;
    if let Some(value) = keys.get("fixed_output_tokens") {
        let key = format!("{}fixed_output_tokens", keys.path);
        return Err(ConfigError::new(key, value, "only null is read: remove it"));
    }
    let merge_size = match keys.get("merge_kernel_size") {
        Some(Value::Array(sides)) if sides.len() == 2 && sides[0] == sides[1] => {
            keys.as_number("merge_kernel_size", &sides[0])?
        }
        _ => keys.number("merge_kernel_size", keys.number("merge_size", 2)?)?,
    };
    let mut side = 512;
    if let Some(size) = keys.inner("size")? {
        side = size.number("max_height", side)?;
        let width = size.number("max_width", side)?;
        if width != side {
            let key = format!("{}max_width", size.path);
            return Err(ConfigError::new(key, width, format!("write {side}, as max_height")));
        }
    }
    let rule = SizeRule::PatchLimit {
        max_patches: keys.number("in_patch_limit", keys.number("max_patches", 16_384)?)?,
        max_side_patches: keys.number("patch_limit_on_one_side", side)?,
    };
    Ok(Parameters {
        patch_size: keys.number("patch_size", 14)?,
        merge_size,
        n_frames: 1,
        rule,
        levels: keys.levels(HALF, HALF)?,
        order: ValueOrder::RowsThenChannels,
    })
}

/// As the files of GLM-5.3-Flash.
fn canvas(keys: &Keys) -> Result<Parameters, ConfigError> {
    keys.check_steps(true)?;
    let expand = keys.number("patch_expand_factor", 1)?;
    if expand != 1 {
        let key = format!("{}patch_expand_factor", keys.path);
        return Err(ConfigError::new(key, expand, "only 1 is read: remove it"));
    }
    let rule = SizeRule::Canvas {
        min_tokens: keys.number("min_image_tokens", 16)?,
        max_tokens: keys.number("max_image_tokens", 8000)?,
    };
    Ok(Parameters {
        patch_size: keys.number("patch_size", 14)?,
        merge_size: keys.number("merge_size", 2)?,
        n_frames: keys.number("temporal_patch_size", 2)?,
        rule,
        levels: keys.levels(CLIP_MEAN, CLIP_DEVIATION)?,
        order: ValueOrder::TokensThenChannels,
    })
}

/// The keys of an object, and where it is in the file.
#[derive(Clone)]
struct Keys {
    object: Map<String, Value>,
    /// Empty, or ends with a point.
    path: String,
}

impl Keys {
    /// The value of a key; null is as good as none.
    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn inner(&self, key: &str) -> Result<Option<Self>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => {
                Ok(Some(Self { object: object.clone(), path: format!("{}{key}.", self.path) }))
            }
            Some(value) => Err(self.wrong(key, value, "write an object")),
        }
    }

    fn wrong(&self, key: &str, value: &Value, remedy: &str) -> ConfigError {
        ConfigError::new(format!("{}{key}", self.path), value, remedy)
    }

    fn number(&self, key: &str, default: usize) -> Result<usize, ConfigError> {
        self.get(key).map_or(Ok(default), |value| self.as_number(key, value))
    }

    /// A whole number that is not negative; 16.0 counts as one.
    fn as_number(&self, key: &str, value: &Value) -> Result<usize, ConfigError> {
        const MOST: f64 = 4_294_967_296.0;
        let number = value.as_f64().filter(|n| (0.0..MOST).contains(n) && n.fract() == 0.0);
        let remedy = "write a whole number of pixels, patches or tokens";
        number.map(|n| n as usize).ok_or_else(|| self.wrong(key, value, remedy))
    }

    fn levels(&self, mean: [f32; 3], deviation: [f32; 3]) -> Result<Levels, ConfigError> {
        let mean = self.channels("image_mean", mean)?;
        Ok(Levels::Standardised { mean, deviation: self.channels("image_std", deviation)? })
    }

    /// A number for each channel, or one for all.
    fn channels(&self, key: &str, default: [f32; 3]) -> Result<[f32; 3], ConfigError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let number = |value: &Value| value.as_f64().map(|n| n as f32);
        let channels = match value {
            Value::Array(values) => match values.as_slice() {
                [red, green, blue] => number(red).zip(number(green)).zip(number(blue)),
                _ => None,
            },
            value => number(value).map(|n| ((n, n), n)),
        };
        let channels = channels.map(|((red, green), blue)| [red, green, blue]);
        channels.ok_or_else(|| self.wrong(key, value, "write three numbers, of red, green, blue"))
    }

    /// Refuses files that leave out or change a step that is taken here.
    fn check_steps(&self, normalises: bool) -> Result<(), ConfigError> {
        let steps = [("do_resize", true), ("do_rescale", true), ("do_normalize", normalises)];
        for (key, wanted) in steps {
            match self.get(key) {
                None => {}
                Some(Value::Bool(value)) if *value == wanted => {}
                Some(value) => {
                    let remedy = format!("processors of this kind are read with {wanted} only");
                    return Err(self.wrong(key, value, &remedy));
                }
            }
        }
        if let Some(value) = self.get("rescale_factor") {
            let is_usual = |factor: f64| (factor * 255.0 - 1.0).abs() < 1e-6;
            if !value.as_f64().is_some_and(is_usual) {
                return Err(self.wrong("rescale_factor", value, "only 1/255 is read"));
            }
        }
        match self.get("resample") {
            Some(value) if value.as_u64() != Some(BICUBIC) => {
                Err(self.wrong("resample", value, "only 3 is read, bicubic"))
            }
            _ => Ok(()),
        }
    }
}
