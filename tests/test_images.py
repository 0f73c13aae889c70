"""Images as datasets hold them: every kind decodes to the same picture, and what is broken is told with its row."""

import base64
import http.server
import io
import json
import threading

import numpy as np
import pytest
from PIL import Image

from branchwise.config import ConfigError, DataConfig, Source, load_config
from branchwise.data import DataError, load_rows, questions
from branchwise.data.images import ImageError, Limits, decode, moved, pictures

LIMITS = Limits()
RED, GREEN = (200, 30, 10), (20, 180, 40)


def half(size=(8, 6), mode="RGB"):
    """Red on the left, green on the right."""
    image = Image.new("RGB", size, RED)
    image.paste(GREEN, (size[0] // 2, 0, *size))
    return image.convert(mode)


def packed(image, kind="PNG", **settings):
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def only(value, folder, limits=LIMITS):
    (found,) = pictures(value, folder, limits)
    return found.image()


def made(rows, folder=None, rephrasings=0, **data):
    table = load_rows(rows if folder is None else Source(path=str(folder / rows)))
    return questions(table, DataConfig(**data), rephrasings)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda content, path: path.name,
        lambda content, path: str(path),
        lambda content, path: path,
        lambda content, path: f"file://{path}",
        lambda content, path: content,
        lambda content, path: bytearray(content),
        lambda content, path: base64.b64encode(content).decode(),
        lambda content, path: base64.urlsafe_b64encode(content).decode().rstrip("="),
        lambda content, path: f"data:image/png;base64,{base64.b64encode(content).decode()}",
        lambda content, path: Image.open(io.BytesIO(content)),
        lambda content, path: {"bytes": content, "path": None},
        lambda content, path: {"bytes": None, "path": path.name},
        lambda content, path: {"url": f"data:image/png;base64,{base64.b64encode(content).decode()}"},
    ],
)
def test_every_kind_of_image_is_the_same_picture(wrap, tmp_path):
    path = tmp_path / "with a blank.png"
    path.write_bytes(content := packed(half()))
    assert only(wrap(content, path), tmp_path).tobytes() == half().tobytes()
    assert only([wrap(content, path)], tmp_path).size == (8, 6)


def test_no_image_is_none(tmp_path):
    assert all(pictures(value, tmp_path, LIMITS) == () for value in (None, [], "", float("nan")))


def test_urls_are_fetched_only_where_they_are_allowed(tmp_path):
    content = packed(half())

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if "there" in self.path else 404)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/there.png"
        with pytest.raises(ImageError, match=r"behind a URL; .* data\.image_urls: true"):
            pictures(url, tmp_path, LIMITS)
        assert only(url, tmp_path, Limits(urls=True)).tobytes() == half().tobytes()
        with pytest.raises(ImageError, match=r"cannot be fetched: .*404"):
            pictures(url.replace("there", "gone"), tmp_path, Limits(urls=True))
        server.shutdown()


# What is seen


def test_transparent_parts_are_white():
    image = half(mode="RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size).point(lambda v: 0 if v < 128 else 255))
    assert decode(packed(image)).getpixel((0, 0)) == (255, 255, 255)
    assert decode(packed(image)).getpixel((0, 5)) == RED
    grey = Image.new("LA", (2, 2), (0, 0))
    assert decode(packed(grey)).getpixel((0, 0)) == (255, 255, 255)


def test_palettes_and_transparent_palettes():
    assert decode(packed(half(mode="P"), "GIF")).mode == "RGB"
    image = Image.new("P", (2, 2), 0)
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putpixel((1, 1), 1)
    seen = decode(packed(image, transparency=0))
    assert seen.getpixel((0, 0)) == (255, 255, 255) and seen.getpixel((1, 1)) == (0, 0, 255)


def test_cmyk_is_not_inverted():
    seen = np.asarray(decode(packed(half((16, 16), "CMYK"), "JPEG", quality=95))).astype(int)
    assert np.abs(seen[4, 2] - RED).max() < 30 and np.abs(seen[4, 13] - GREEN).max() < 30


@pytest.mark.parametrize("orientation, corner", [(1, RED), (2, GREEN), (3, GREEN), (6, RED), (8, GREEN)])
def test_the_orientation_of_exif_is_applied(orientation, corner):
    exif = Image.Exif()
    exif[0x0112] = orientation
    seen = decode(packed(half(), exif=exif))
    assert seen.size == ((6, 8) if orientation in (6, 8) else (8, 6))
    assert seen.getpixel((0, 0)) == corner


@pytest.mark.parametrize(
    "mode, value, wanted",
    [
        ("I;16", 65535, 255),
        ("I;16", 32896, 128),
        ("I", 257, 1),
        ("I", 200, 200),
        ("F", 0.5, 128),
        ("1", 1, 255),
        ("L", 77, 77),
    ],
)
def test_deep_grey_keeps_its_brightness(mode, value, wanted):
    """PIL's own conversion of 16 bits is white wherever the value is above 255."""
    image = Image.new(mode, (2, 2), value)
    seen = decode(image if mode in ("F", "I") else packed(image))
    assert seen.mode == "RGB" and seen.getpixel((0, 0)) == (wanted,) * 3


def test_of_an_animation_the_first_frame_is_seen():
    frames = [Image.new("RGB", (4, 4), c) for c in ((255, 0, 0), (0, 0, 255))]
    content = packed(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert decode(content).getpixel((0, 0)) == (255, 0, 0)


# What is broken


@pytest.mark.parametrize(
    "value, reason",
    [
        ("gone.png", r"no file .*gone\.png"),
        (packed(half((64, 64)))[:80], "cannot be decoded"),
        (packed(half((64, 64)), "JPEG")[:400], "cannot be decoded"),
        (b"plain text", "no image of a known kind"),
        ("data:image/png;base64,????", "no base64"),
        (5, "int is no image"),
        ({"caption": "a cat"}, "a mapping without any of bytes, image, path, url"),
        ([packed(half()), "gone.png"], r"image 2 of 2: no file"),
        ("data:nothing", "no data URL"),
    ],
)
def test_what_is_broken_is_told(value, reason, tmp_path):
    with pytest.raises(ImageError, match=reason):
        pictures(value, tmp_path, LIMITS)


def test_broken_images_are_reported_with_their_rows(tmp_path):
    half().save(tmp_path / "whole.png")
    (tmp_path / "short.jpg").write_bytes(packed(half((64, 64)), "JPEG")[:300])
    rows = [
        {"question": f"q{i}", "answer": "1", "image": name}
        for i, name in enumerate(("whole.png", "short.jpg", "no.png"))
    ]
    (tmp_path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found, report = made("d.jsonl", tmp_path)
    assert [q.id for q in found] == ["1"] and report.usable == 1
    assert f"{tmp_path / 'd.jsonl'}: 1 of 3 rows usable" in str(report)
    assert "line 2: its image: it cannot be decoded" in str(report)
    assert f"line 3: its image: no file {tmp_path / 'no.png'}" in str(report)
    (tmp_path / "d.jsonl").write_text(json.dumps(rows[1]))
    with pytest.raises(DataError, match=r"no usable row(.|\n)*line 1: its image"):
        made("d.jsonl", tmp_path)


# Sizes


@pytest.mark.parametrize(
    "limits, size, wanted",
    [
        (Limits(), (640, 480), (640, 480)),
        (Limits(max_pixels=640 * 480), (640, 480), (640, 480)),
        (Limits(max_pixels=320 * 240), (640, 480), (320, 240)),
        (Limits(max_pixels=100), (1000, 10), (100, 1)),
        (Limits(max_pixels=10), (10**6, 1), (3162, 1)),
        (Limits(min_pixels=400), (10, 10), (20, 20)),
        (Limits(min_pixels=100, max_pixels=400), (15, 15), (15, 15)),
    ],
)
def test_images_are_fitted_to_the_limits_and_keep_their_shape(limits, size, wanted):
    assert limits.size(*size) == wanted


def test_boxes_go_along_with_the_size_of_their_image():
    row = {"question": "Where?", "answer": [10, 20, 30, 40], "path": [[0, 0], [40, 40]], "image": half((80, 40))}
    (question,), _ = made([row], max_pixels=40 * 20, boxes=["answer", "path"])
    assert question.images[0].image().size == (40, 20)
    columns = question.columns
    assert columns["answer"] == [5, 10, 15, 20] and columns["path"] == [[0, 0], [20, 20]]
    assert (columns["width"], columns["height"]) == (40, 20)
    (question,), _ = made([row])
    assert question.columns["answer"] == row["answer"] and question.columns["width"] == 80
    (question,), _ = made([row | {"answer": "[10, 20, 30, 40]"}], max_pixels=800, boxes=["answer"])
    assert question.columns["answer"] == [5, 10, 15, 20]


def test_boxes_that_are_none_are_told():
    row = {"question": "Where?", "answer": "left", "image": half((80, 40))}
    with pytest.raises(
        DataError, match=r"row 1: its column answer, which data\.boxes names, is no list of coordinates"
    ):
        made([row], max_pixels=800, boxes=["answer"])


@pytest.mark.parametrize("value", [[1, 2, 3], ["a", "b"], [True, False], [[1, 2], [3]], None])
def test_coordinates_are_pairs_of_numbers(value):
    with pytest.raises(ImageError):
        moved(value, (1, 1))


def test_pixel_limits_without_boxes_are_refused_where_a_reward_reads_pixels():
    settings = {"model": {"path": "m"}, "rewards": ["box"], "data": {"max_pixels": 1000}}
    with pytest.raises(ConfigError, match=r"data\.max_pixels: .* data\.boxes: \[answer\]"):
        load_config(settings)
    load_config(settings | {"data": {"max_pixels": 1000, "boxes": ["answer"]}})
    load_config(settings | {"rewards": [{"function": "box", "args": {"coordinates": "thousand"}}]})


# Where images stand


def parts(prompt):
    return [part["type"] if part["type"] == "image" else part["text"] for part in prompt[-1]["content"]]


def test_images_stand_at_their_placeholders_or_before_the_question():
    two = [half(), half((4, 4))]
    (question,), _ = made([{"question": "Is <image> like <image>?", "images": two}])
    assert parts(question.phrasings[0]) == ["Is ", "image", " like ", "image", "?"]
    assert [p.size for p in question.images] == [(8, 6), (4, 4)]
    (question,), _ = made([{"question": "Alike?", "images": two}], template="Look.\n{question}")
    assert parts(question.phrasings[0]) == ["image", "image", "Look.\nAlike?"]
    (question,), _ = made([{"prompt": "Alike?", "image": half()}])
    assert question.phrasings[0] == [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Alike?"}]}
    ]
    (question,), _ = made([{"question": "Is <image> a tag?"}])
    assert question.phrasings[0][0]["content"] == "Is <image> a tag?" and question.images == ()


def test_more_or_fewer_places_than_images_are_told():
    with pytest.raises(DataError, match="row 1: 1 images, but 2 places for them"):
        made([{"question": "<image> <image>", "image": half()}])
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "q"}]}
    with pytest.raises(DataError, match="row 1: its messages have 1 places for images, and its column has 2"):
        made([{"prompt": [message], "images": [half(), half()]}])


def test_rephrasings_keep_the_places():
    row = {"question": "Is <image> red?", "image": half()}
    row["rephrasings"] = ["Red, <image>?", "Is it red?", "<image> or <image>?"]
    (question,), report = made([row], rephrasings=3)
    assert [parts(p) for p in question.phrasings] == [
        ["Is ", "image", " red?"],
        ["Red, ", "image", "?"],
        ["image", "Is it red?"],
    ]
    assert report.rephrasings == 2
    assert report.left_out == {"with fewer or more places for images than images": 1}


def test_messages_keep_their_images_where_they_stand():
    url = f"data:image/png;base64,{base64.b64encode(packed(half((4, 4)))).decode()}"
    content = [
        {"type": "text", "text": "Is"},
        {"type": "image", "image": half()},
        {"type": "text", "text": "like"},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    (question,), _ = made([{"prompt": [{"role": "user", "content": content}]}])
    assert parts(question.phrasings[0]) == ["Is", "image", "like", "image"]
    assert [p.size for p in question.images] == [(8, 6), (4, 4)]


def test_nlvr_pictures_are_loaded_from_their_own_column(shared_data):
    source = Source(path=str(shared_data / "nlvr_dev.jsonl"), limit=5)
    found, report = questions(load_rows(source), DataConfig(image_column="image_png_base64"))
    assert report.usable == 5 and {q.images[0].size for q in found} == {(400, 100)}
    assert np.asarray(found[0].images[0].image()).std() > 1
    with pytest.raises(
        DataError, match=r"data\.image_column: 'photo' is no column of .*; the columns found are id, problem"
    ):
        questions(load_rows(source), DataConfig(image_column="photo"))
