"""Uses the console in Chromium, in an environment with Selenium.

``browser.py URL TOKEN SPEECH FILE …``
Prints one JSON object: the status without a token and with a wrong one, what each model answers by
task, the titles and numbers of the charts, and what the browser logs. ``SPEECH``: a recording.
``FILE``: a picture for the models of images; those that take several get all.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from selenium import webdriver  # type: ignore[import-not-found,unused-ignore]
from selenium.webdriver.common.by import By  # type: ignore[import-not-found,unused-ignore]
from selenium.webdriver.support.ui import (  # type: ignore[import-not-found,unused-ignore]
    WebDriverWait,
)

CSS = By.CSS_SELECTOR
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1300,900"),
    # A microphone that beeps.
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
)
MARKUP = "<b>bold</b>"
SHELL = 'it\'s "$HOME" `\\n`'
SECONDS = 60


class Page:
    """The console in a browser."""

    def __init__(self, url: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for option in OPTIONS:
            options.add_argument(option)
        service = webdriver.ChromeService("/usr/bin/chromedriver")
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.get(url)

    def text(self, selector: str) -> str:
        return str(self.driver.find_element(CSS, selector).text)

    def all(self, selector: str) -> list[Any]:
        found: list[Any] = self.driver.find_elements(CSS, selector)
        return found

    def wait(self, condition: Any) -> None:
        WebDriverWait(self.driver, SECONDS).until(lambda _: condition())

    def use_token(self, token: str) -> None:
        field = self.driver.find_element(CSS, "#token")
        field.clear()
        field.send_keys(token)
        self.driver.find_element(CSS, "#access button").click()

    def choose(self, model: str) -> list[str]:
        """Chooses a model, and labels if it needs some. Returns the titles of its tasks' tabs."""
        buttons = self.all("#models button")
        next(button for button in buttons if button.text.split("\n")[0] == model).click()
        if model == "gliner":
            self.fill("candidate_labels", "person, city")
        return [tab.text for tab in self.all(".tasks button")]

    def fill(self, name: str, text: str) -> None:
        field = self.driver.find_element(CSS, f"form.task [name={name}]")
        field.clear()
        field.send_keys(text)

    def choose_pictures(self, pictures: Sequence[str]) -> list[int]:
        """Chooses files, if the form takes any. Returns the widths of their previews."""
        for field in self.all("form.task [accept*='.png']"):
            files = pictures if field.get_attribute("multiple") else pictures[:1]
            field.send_keys("\n".join(files))
            count = len(files)
            self.wait(lambda count=count: len(self.all(".previews img")) == count)
        images = "[...document.querySelectorAll('.previews img')]"
        complete = f"return {images}.every((image) => image.complete)"
        self.wait(lambda: self.driver.execute_script(complete))
        script = f"return {images}.map((image) => image.naturalWidth)"
        widths: list[int] = self.driver.execute_script(script)
        return widths

    def choose_recording(self, recording: str) -> None:
        """Chooses a recording, if the form takes one, and waits for its player."""
        for field in self.all("form.task [accept*='audio']"):
            field.send_keys(recording)
            self.wait_for_player()

    def record(self) -> None:
        """Records from the microphone."""
        button = self.driver.find_element(CSS, ".recording button")
        before = self.driver.execute_script("return document.querySelector('audio').src")
        button.click()
        self.wait(lambda: button.text == "Stop recording")
        button.click()
        script = "return document.querySelector('audio').src"
        self.wait(lambda: self.driver.execute_script(script) != before)
        self.wait_for_player()

    def wait_for_player(self) -> None:
        """Until the player knows the recording: it has metadata."""
        script = "return document.querySelector('audio').readyState > 0"
        self.wait(lambda: self.driver.execute_script(script))

    def command(self) -> str:
        """The shell command of the form."""
        self.driver.find_element(CSS, "form.task summary").click()
        return self.text("form.task pre")

    def run(self) -> str:
        """Sends the form. Returns the output, or the error."""
        before = self.text("form.task .output")
        self.driver.find_element(CSS, "form.task > button").click()
        ended = "form.task > .note, form.task > .error"
        self.wait(lambda: self.text("form.task > button") == "Run" and self.text(ended))
        if errors := self.all("form.task > .error"):
            return f"error: {errors[0].text}"
        return self.text("form.task .output").removeprefix(before)


def candidate_labels(page: Page) -> str:
    """The scores of labels that the request brings with it."""
    page.choose("entailer")
    page.fill("candidate_labels", "software, an animal")
    return page.run()


def main(url: str, token: str, recording: str, *pictures: str) -> dict[str, Any]:
    page = Page(url)
    try:
        page.wait(lambda: not page.text("#status").startswith("Connecting"))
        without = page.text("#status")
        page.use_token("wrong")
        page.wait(lambda: page.text("#status") == without)
        rejected = [page.text("#status"), len(page.all("#models button"))]
        page.use_token(token)
        page.wait(lambda: page.all("#models button"))
        answers: dict[str, dict[str, str]] = {}
        widths: dict[str, list[int]] = {}
        highest: list[str] = []
        for model in [button.text.split("\n")[0] for button in page.all("#models button")]:
            tabs = page.choose(model)
            widths[model] = page.choose_pictures(pictures)
            page.choose_recording(recording)
            answers[model] = {} if tabs else {"": page.run()}
            for number, title in enumerate(tabs):
                page.all(".tasks button")[number].click()
                answers[model][title] = page.run()
                if found := page.all(".output .highest"):
                    highest = [cell.text for cell in found]
                if title == "Chat":
                    answers[model]["Chat again"] = page.run()
        page.choose("embedder")
        page.fill("text", MARKUP)
        markup = [page.run(), len(page.all(".output b"))]
        command = page.command()
        candidates = candidate_labels(page)
        page.choose("vit")
        no_picture = page.run()
        page.choose("vilbert")
        page.choose_pictures(pictures)
        page.fill("text", SHELL)
        image_command = page.command()
        page.choose("speech")
        no_recording = page.run()
        page.record()
        recorded = page.run()
        page.choose_recording(recording)
        page.fill("language", "de")
        page.fill("prompt", SHELL)
        speech_command = page.command()
        page.driver.find_element(CSS, "form.task [name=translate]").click()
        translated = page.run()
        page.choose("tiny-decoder")
        page.fill("temperature", "1000")
        form_error = page.run()
        page.wait(lambda: all(number.text for number in page.all(".chart b")))
        return {
            "without": without,
            "rejected": rejected,
            "answers": answers,
            "markup": markup,
            "error": form_error,
            "charts": [chart.text for chart in page.all(".chart")],
            "command": command,
            "widths": widths,
            "highest": highest,
            "candidates": candidates,
            "no_picture": no_picture,
            "image_command": image_command,
            "no_recording": no_recording,
            "recorded": recorded,
            "speech_command": speech_command,
            "translated": translated,
            "log": [entry["message"] for entry in page.driver.get_log("browser")],
        }
    finally:
        page.driver.quit()


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
