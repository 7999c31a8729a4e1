#include "tests/bench/storm/plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace failback {
namespace {

constexpr double kWidth = 760;
constexpr double kPanelHeight = 220;
constexpr double kLeft = 90;
constexpr double kRight = 190;
constexpr double kTop = 50;
constexpr double kGap = 60;

const char* Color(size_t index) {
  // Told apart without red and green, too (Okabe and Ito).
  static constexpr const char* kColors[] = {"#0072b2", "#e69f00", "#cc79a7", "#009e73", "#d55e00"};
  return kColors[index % 5];
}

// The next of 1, 2, 5, 10, … that is not below.
double RoundUp(double value) {
  if (value <= 0) return 1;
  const double power = std::pow(10, std::floor(std::log10(value)));
  for (const double step : {1.0, 2.0, 5.0}) {
    if (step * power >= value) return step * power;
  }
  return 10 * power;
}

double Highest(const Panel& panel) {
  double top = panel.mark;
  for (const Series& series : panel.series) {
    for (const double value : series.values) top = std::max(top, value);
  }
  return top;
}

}  // namespace

std::string SvgPlot(const std::string& title, const std::vector<Panel>& panels, int steps,
                    double step_seconds) {
  const double plot = kWidth - kLeft - kRight;
  const double height = kTop + static_cast<double>(panels.size()) * (kPanelHeight + kGap);
  std::string out = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
      "<text x=\"%.0f\" y=\"22\" font-size=\"15\">%s</text>\n",
      kWidth, height, kLeft, title);
  for (size_t p = 0; p < panels.size(); ++p) {
    const Panel& panel = panels[p];
    const double top = kTop + static_cast<double>(p) * (kPanelHeight + kGap);
    const double bottom = top + kPanelHeight;
    const double most = RoundUp(Highest(panel));
    const auto y = [&](double value) { return bottom - value / most * kPanelHeight; };
    absl::StrAppendFormat(&out, "<text x=\"%.0f\" y=\"%.0f\" font-weight=\"bold\">%s</text>\n",
                          kLeft, top - 8, panel.title);
    for (int i = 0; i <= 5; ++i) {
      const double value = most * i / 5;
      absl::StrAppendFormat(
          &out,
          "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#ddd\"/>"
          "<text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
          kLeft, kLeft + plot, y(value), y(value), kLeft - 8, y(value) + 4, value);
      const double x = kLeft + plot * i / 5;
      absl::StrAppendFormat(&out,
                            "<text x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%.3g s</text>\n", x,
                            bottom + 18, steps * step_seconds * i / 5);
    }
    for (size_t s = 0; s < panel.series.size(); ++s) {
      const Series& series = panel.series[s];
      std::string points;
      for (int i = 0; i < steps && i < static_cast<int>(series.values.size()); ++i) {
        absl::StrAppendFormat(&points, "%.1f,%.1f ", kLeft + plot * (i + 0.5) / steps,
                              y(series.values[i]));
      }
      absl::StrAppendFormat(
          &out,
          "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"/>"
          "<text x=\"%.0f\" y=\"%.0f\" fill=\"%s\">%s</text>\n",
          points, Color(s), kLeft + plot + 12, top + 14 + 18 * static_cast<double>(s), Color(s),
          series.name);
    }
    if (panel.mark > 0) {
      absl::StrAppendFormat(&out,
                            "<line x1=\"%.0f\" x2=\"%.0f\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"#000\" "
                            "stroke-dasharray=\"4 3\"/><text x=\"%.0f\" y=\"%.1f\">%s</text>\n",
                            kLeft, kLeft + plot, y(panel.mark), y(panel.mark), kLeft + plot + 12,
                            y(panel.mark) + 4, panel.mark_name);
    }
  }
  return out + "</svg>\n";
}

std::string TextPlot(const Series& series, int steps, double step_seconds, int width, int height,
                     double top, double mark) {
  std::vector<double> columns(width, 0);
  for (int i = 0; i < steps && i < static_cast<int>(series.values.size()); ++i) {
    double& column = columns[static_cast<size_t>(i) * width / steps];
    column = std::max(column, series.values[i]);
  }
  std::string out = absl::StrCat(series.name, "\n");
  for (int row = height - 1; row >= 0; --row) {
    const double floor = top * row / height;
    const bool marked = mark > floor && mark <= top * (row + 1) / height;
    absl::StrAppendFormat(&out, "%10s |",
                          row == height - 1 ? absl::StrFormat("%.0f", top)
                          : marked          ? "capacity"
                                            : "");
    for (const double value : columns) out += value > floor ? '#' : marked ? '-' : ' ';
    out += '\n';
  }
  absl::StrAppendFormat(&out, "%10s +%s\n%12s0%*s\n", "", std::string(width, '-'), "", width - 1,
                        absl::StrFormat("%.3g s", steps * step_seconds));
  return out;
}

}  // namespace failback
