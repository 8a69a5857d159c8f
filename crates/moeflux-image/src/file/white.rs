//! Transparency over white.

/// A channel over white: Pillow's `alpha_composite` on an opaque background, exactly.
pub(super) fn over_white(channel: u8, alpha: u8) -> u8 {
    let (channel, alpha) = (u32::from(channel), u32::from(alpha));
    divide_by_255(channel * alpha + 255 * (255 - alpha))
}

/// `product / 255`, rounded, for products of two bytes: what Pillow calls MULDIV255 and SHIFTFORDIV255.
pub(super) fn divide_by_255(product: u32) -> u8 {
    let t = product + 128;
    // At most 255, since the product is at most 255 * 255.
    (((t >> 8) + t) >> 8) as u8
}

/// RGBA over white, in place: the first three quarters of the bytes become RGB, the rest is cut off.
pub(super) fn rgba_to_rgb(bytes: &mut Vec<u8>) {
    let n_pixels = bytes.len() / 4;
    for i in 0..n_pixels {
        let alpha = bytes[4 * i + 3];
        for channel in 0..3 {
            bytes[3 * i + channel] = over_white(bytes[4 * i + channel], alpha);
        }
    }
    bytes.truncate(3 * n_pixels);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_and_clear_pixels_are_exact() {
        for channel in 0..=255 {
            assert_eq!(over_white(channel, 255), channel);
            assert_eq!(over_white(channel, 0), 255);
        }
        let mut bytes = vec![10, 20, 30, 255, 10, 20, 30, 0];
        rgba_to_rgb(&mut bytes);
        assert_eq!(bytes, [10, 20, 30, 255, 255, 255]);
    }
}
