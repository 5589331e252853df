//! What is done with the pixels of a picture: unpack, make smaller, turn, cut, sharpen, pack again in the same format. A pure function
//! over bytes, run by a thread of a pool. What may be unpacked at all was judged by the picture's head before.

use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};
use image::{ImageFormat, ImageReader, Limits, RgbaImage, imageops};
use std::io::Cursor;
use wire::picture::Kind;

/// Larger pictures are not unpacked: those of cameras pass, what a few hundred bytes claim to be does not (nginx asks libgd, which has
/// no such bound).
pub(super) const MAX_PIXELS: u64 = 32 * 1024 * 1024;
/// What a decoder may have in memory for one of them, beside the result.
const MAX_MEMORY: u64 = MAX_PIXELS * 8;
/// How well the colours of a GIF are chosen, from 1 (slow) to 30.
const PALETTE_SPEED: i32 = 10;

/// What is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Shape {
    /// Only turned.
    #[default]
    Whole,
    /// Fits into the box.
    Resize,
    /// Covers the box as far as it is large enough, and what stands over is cut off.
    Crop,
}

/// What is to become of a picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    /// What is done.
    pub shape: Shape,
    /// The box.
    pub width: u32,
    /// The box.
    pub height: u32,
    /// Counter-clockwise: 0, 90, 180 or 270.
    pub angle: u32,
    /// `image_filter_jpeg_quality`, 1 to 100.
    pub jpeg_quality: u8,
    /// `image_filter_sharpen`, per cent.
    pub sharpen: u32,
    /// `image_filter_transparency`
    pub transparency: bool,
    /// `image_filter_interlace`
    pub interlace: bool,
}

impl Plan {
    /// Whether a picture of this size is what is wanted already.
    pub(super) fn leaves(&self, width: u32, height: u32) -> bool {
        self.angle == 0 && width <= self.width && height <= self.height
    }

    /// The size that the picture gets before it is turned and cut (`ngx_http_image_resize`).
    fn scaled(&self, width: u32, height: u32) -> (u32, u32) {
        let part = |n: u32, of: u32, to: u32| ((u64::from(n) * u64::from(to) / u64::from(of)) as u32).max(1);
        let (mut w, mut h) = (width, height);
        match self.shape {
            Shape::Whole => {}
            Shape::Resize => {
                if w > self.width {
                    (w, h) = (self.width, part(h, w, self.width));
                }
                if h > self.height {
                    (w, h) = (part(w, h, self.height), self.height);
                }
            }
            Shape::Crop => {
                let is_narrower = u64::from(w) * u64::from(self.height) < u64::from(self.width) * u64::from(h);
                if is_narrower && w > self.width {
                    (w, h) = (self.width, part(h, w, self.width));
                } else if !is_narrower && h > self.height {
                    (w, h) = (part(w, h, self.height), self.height);
                }
            }
        }
        (w, h)
    }
}

/// Makes the new picture. The error says what is wrong with the old one.
pub(super) fn transform(kind: Kind, bytes: &[u8], plan: &Plan) -> Result<Vec<u8>, String> {
    let mut picture = decode(kind, bytes)?;
    let (w, h) = plan.scaled(picture.width(), picture.height());
    if (w, h) != picture.dimensions() {
        picture = resize(&picture, w, h)?;
    }
    picture = match plan.angle {
        90 => imageops::rotate270(&picture),
        180 => imageops::rotate180(&picture),
        270 => imageops::rotate90(&picture),
        _ => picture,
    };
    if plan.shape == Shape::Crop {
        let (over_w, over_h) =
            (picture.width().saturating_sub(plan.width), picture.height().saturating_sub(plan.height));
        if over_w > 0 || over_h > 0 {
            let (w, h) = (picture.width() - over_w, picture.height() - over_h);
            picture = imageops::crop_imm(&picture, over_w / 2, over_h / 2, w, h).to_image();
        }
    }
    if plan.sharpen > 0 && kind != Kind::Gif {
        picture = sharpen(&picture, plan.sharpen);
    }
    if !plan.transparency {
        picture.pixels_mut().for_each(|p| p.0[3] = u8::MAX);
    }
    encode(kind, picture, plan)
}

fn decode(kind: Kind, bytes: &[u8]) -> Result<RgbaImage, String> {
    let format = match kind {
        Kind::Jpeg => ImageFormat::Jpeg,
        Kind::Gif => ImageFormat::Gif,
        Kind::Png => ImageFormat::Png,
        Kind::Webp => ImageFormat::WebP,
    };
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    limits.max_alloc = Some(MAX_MEMORY);
    reader.limits(limits);
    let picture = reader.decode().map_err(|e| e.to_string())?;
    Ok(picture.into_rgba8())
}

fn resize(picture: &RgbaImage, width: u32, height: u32) -> Result<RgbaImage, String> {
    let from = ImageRef::new(picture.width(), picture.height(), picture.as_raw(), PixelType::U8x4);
    let from = from.map_err(|e| e.to_string())?;
    let mut to = Image::new(width, height, PixelType::U8x4);
    // Each pixel is the mean of those that it stands for, as libgd has it.
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Box));
    Resizer::new().resize(&from, &mut to, &options).map_err(|e| e.to_string())?;
    RgbaImage::from_raw(width, height, to.into_vec()).ok_or_else(|| "a picture of another size".to_owned())
}

/// Takes from each pixel what its neighbours have in common with it, along rows, then along columns (`gdImageSharpen`).
fn sharpen(picture: &RgbaImage, percent: u32) -> RgbaImage {
    let outer = -f64::from(percent) / 400.0;
    let inner = 1.0 - 2.0 * outer;
    let once = |picture: &RgbaImage, across: u32, down: u32| {
        let (last_x, last_y) = (picture.width() - 1, picture.height() - 1);
        RgbaImage::from_fn(picture.width(), picture.height(), |x, y| {
            let here = picture.get_pixel(x, y);
            let before = picture.get_pixel(x.saturating_sub(across), y.saturating_sub(down));
            let after = picture.get_pixel((x + across).min(last_x), (y + down).min(last_y));
            let mut new = *here;
            for c in 0..3 {
                let sum = f64::from(before.0[c]) + f64::from(after.0[c]);
                new.0[c] = (inner * f64::from(here.0[c]) + outer * sum).clamp(0.0, 255.0) as u8;
            }
            new
        })
    };
    once(&once(picture, 1, 0), 0, 1)
}

fn encode(kind: Kind, picture: RgbaImage, plan: &Plan) -> Result<Vec<u8>, String> {
    match kind {
        Kind::Jpeg => jpeg(&picture, plan),
        Kind::Gif => gif(picture, plan.interlace),
        Kind::Png => {
            let mut out = Cursor::new(Vec::new());
            let is_solid = picture.pixels().all(|p| p.0[3] == u8::MAX);
            let written = if is_solid {
                image::DynamicImage::ImageRgba8(picture).into_rgb8().write_to(&mut out, ImageFormat::Png)
            } else {
                picture.write_to(&mut out, ImageFormat::Png)
            };
            written.map_err(|e| e.to_string())?;
            Ok(out.into_inner())
        }
        Kind::Webp => {
            let mut out = Cursor::new(Vec::new());
            picture.write_to(&mut out, ImageFormat::WebP).map_err(|e| e.to_string())?;
            Ok(out.into_inner())
        }
    }
}

fn sides(picture: &RgbaImage) -> Result<(u16, u16), String> {
    let side = |n: u32| u16::try_from(n).map_err(|_| format!("a side of {n} pixels is too long for the format"));
    Ok((side(picture.width())?, side(picture.height())?))
}

/// With a comment behind the first marker that says how it was made, as libgd writes one.
fn jpeg(picture: &RgbaImage, plan: &Plan) -> Result<Vec<u8>, String> {
    const START: usize = 2;
    let (width, height) = sides(picture)?;
    let mut packed = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut packed, plan.jpeg_quality);
    encoder.set_progressive(plan.interlace);
    let encoded = encoder.encode(picture.as_raw(), width, height, jpeg_encoder::ColorType::Rgba);
    encoded.map_err(|e| e.to_string())?;
    let text = format!("CREATOR: ironweir, quality = {}\n", plan.jpeg_quality);
    let comment = [&[0xff, 0xfe], &(text.len() as u16 + 2).to_be_bytes()[..], text.as_bytes()].concat();
    // The application's data come first (JFIF), the comment behind them.
    let behind = match packed.get(START..START + 4) {
        Some(&[0xff, 0xe0, high, low]) => START + 2 + usize::from(u16::from_be_bytes([high, low])),
        _ => START,
    };
    packed.splice(behind..behind, comment);
    Ok(packed)
}

fn gif(picture: RgbaImage, interlace: bool) -> Result<Vec<u8>, String> {
    let (width, height) = sides(&picture)?;
    let mut frame = gif::Frame::from_rgba_speed(width, height, &mut picture.into_raw(), PALETTE_SPEED);
    if interlace {
        frame.buffer = interlaced(&frame.buffer, width.into()).into();
        frame.interlaced = true;
    }
    let mut packed = Vec::new();
    let mut encoder = gif::Encoder::new(&mut packed, width, height, &[]).map_err(|e| e.to_string())?;
    encoder.write_frame(&frame).map_err(|e| e.to_string())?;
    drop(encoder);
    Ok(packed)
}

/// Rows in the order in which an interlaced GIF has them (GIF89a, appendix E).
fn interlaced(pixels: &[u8], width: usize) -> Vec<u8> {
    const PASSES: [(usize, usize); 4] = [(0, 8), (4, 8), (2, 4), (1, 2)];
    let rows: Vec<&[u8]> = pixels.chunks_exact(width).collect();
    let order = PASSES.iter().flat_map(|&(from, step)| rows.iter().skip(from).step_by(step));
    order.flat_map(|row| row.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::picture::Size;

    fn plan(shape: Shape, width: u32, height: u32, angle: u32) -> Plan {
        let (jpeg_quality, sharpen, transparency, interlace) = (75, 0, true, false);
        Plan { shape, width, height, angle, jpeg_quality, sharpen, transparency, interlace }
    }

    fn picture() -> RgbaImage {
        RgbaImage::from_fn(100, 120, |x, y| image::Rgba([x as u8, y as u8, 7, if x < 50 { 0 } else { 255 }]))
    }

    fn sample(kind: Kind) -> Vec<u8> {
        encode(kind, picture(), &plan(Shape::Whole, 1, 1, 0)).expect("it can be packed")
    }

    #[test]
    fn sizes_are_those_of_nginx() {
        let cases = [
            (Shape::Resize, 10, 12, 0, (10, 12)),
            (Shape::Resize, 10, u32::MAX, 0, (10, 12)),
            (Shape::Resize, u32::MAX, 12, 0, (10, 12)),
            (Shape::Resize, 5, 6, 90, (6, 5)),
            (Shape::Crop, 60, 80, 0, (60, 80)),
            (Shape::Crop, 10, 20, 0, (10, 20)),
            (Shape::Crop, 5, 6, 90, (5, 5)),
            (Shape::Whole, u32::MAX, u32::MAX, 270, (120, 100)),
            (Shape::Resize, 1, 1, 0, (1, 1)),
        ];
        for kind in [Kind::Jpeg, Kind::Gif, Kind::Png, Kind::Webp] {
            let sample = sample(kind);
            for (shape, w, h, angle, wanted) in cases {
                let made = transform(kind, &sample, &plan(shape, w, h, angle)).expect("it is a picture");
                assert_eq!(Kind::of(&made), Some(kind));
                let size = Size::of(kind, &made).expect("it has a size");
                assert_eq!((size.width, size.height), wanted, "{kind:?} {shape:?} {w}x{h} {angle}");
            }
        }
    }

    #[test]
    fn rotation_is_counter_clockwise_and_transparency_can_be_lost() {
        let sample = sample(Kind::Png);
        let made = transform(Kind::Png, &sample, &plan(Shape::Whole, u32::MAX, u32::MAX, 90)).expect("it is a picture");
        // What was the right upper corner is the left upper one.
        assert_eq!(decode(Kind::Png, &made).expect("it is one").get_pixel(0, 0), picture().get_pixel(99, 0));
        for (kind, transparency) in [(Kind::Png, true), (Kind::Png, false), (Kind::Gif, true), (Kind::Gif, false)] {
            let plan = Plan { transparency, ..plan(Shape::Resize, 10, 10, 0) };
            let made = transform(kind, &self::sample(kind), &plan).expect("it is a picture");
            let corner = decode(kind, &made).expect("it is one").get_pixel(0, 0).0[3];
            assert_eq!(corner == 0, transparency, "{kind:?}");
        }
    }

    #[test]
    fn interlaced_pictures_show_the_same() {
        for kind in [Kind::Gif, Kind::Jpeg] {
            let plain = plan(Shape::Resize, 50, 50, 0);
            let both = [false, true].map(|interlace| {
                let made = transform(kind, &sample(kind), &Plan { interlace, ..plain }).expect("it is a picture");
                (made.clone(), decode(kind, &made).expect("it is one"))
            });
            assert!(both[0].0 != both[1].0 && both[0].1.dimensions() == both[1].1.dimensions());
            if kind == Kind::Gif {
                assert!(both[0].1 == both[1].1);
            } else {
                // Start of a progressive frame (T.81, table B.1).
                assert!(both[1].0.windows(2).any(|m| m == [0xff, 0xc2]));
            }
        }
    }

    #[test]
    fn what_is_cut_off_or_garbled_is_an_error() {
        for kind in [Kind::Jpeg, Kind::Gif, Kind::Png, Kind::Webp] {
            let sample = sample(kind);
            assert!(transform(kind, &sample[..30], &plan(Shape::Resize, 10, 10, 0)).is_err(), "{kind:?}");
            let mut garbled = sample.clone();
            garbled[24..].iter_mut().for_each(|b| *b ^= 0x5a);
            // Some decoders make the best of it; none may do worse than refuse.
            let _ = transform(kind, &garbled, &plan(Shape::Resize, 10, 10, 0));
        }
        let sharp = Plan { sharpen: 50, ..plan(Shape::Resize, 50, 60, 0) };
        let plain = Plan { sharpen: 0, ..sharp };
        let sample = sample(Kind::Png);
        assert_ne!(transform(Kind::Png, &sample, &sharp), transform(Kind::Png, &sample, &plain));
    }
}
