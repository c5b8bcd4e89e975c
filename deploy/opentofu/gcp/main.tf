# One Compute Engine VM that provisions itself from a user-data of cloud-init/render.
#
#   cloud-init/render --hook gcp --release URL --bundle dist/finetuned-VERSION.tar.gz --out user-data
#   tofu -chdir=deploy/opentofu/gcp apply

terraform {
  required_version = ">= 1.6"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 5.0"
    }
  }
}

provider "google" {
  project = var.project
  zone    = var.zone
}

resource "google_compute_firewall" "ssh" {
  name          = "${var.name}-ssh"
  description   = "SSH in; nothing else is opened"
  network       = var.network
  direction     = "INGRESS"
  source_ranges = [var.ssh_from]
  target_tags   = [var.name]

  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_instance" "machine" {
  name         = var.name
  machine_type = var.machine_type
  tags         = [var.name]

  boot_disk {
    initialize_params {
      image = var.image
      size  = var.disk_gb
      type  = var.disk_type
    }
  }

  network_interface {
    network    = var.network
    subnetwork = var.subnetwork

    access_config {}
  }

  # The file is gzipped MIME: encoded once, here, and cloud-init is told so. Not a startup-script.
  metadata = {
    user-data          = filebase64(var.user_data_file)
    user-data-encoding = "base64"
  }

  # A VM with a GPU cannot be moved. After a fault of the host it starts again and its job resumes; a poweroff from
  # inside, which is what deploy/hooks/gcp does, stays off.
  scheduling {
    on_host_maintenance         = "TERMINATE"
    automatic_restart           = !var.spot
    preemptible                 = var.spot
    provisioning_model          = var.spot ? "SPOT" : "STANDARD"
    instance_termination_action = var.spot ? "STOP" : null
  }

  # Prebuilt modules of Ubuntu are signed; the ones that Debian builds are not.
  shielded_instance_config {
    enable_secure_boot = var.secure_boot
  }

  dynamic "service_account" {
    for_each = var.service_account == null ? [] : [var.service_account]

    content {
      email  = service_account.value
      scopes = var.scopes
    }
  }

  # A newer image or user-data is for the next machine, never a reason to replace one that trains:
  # tofu apply -replace=google_compute_instance.machine
  lifecycle {
    ignore_changes = [boot_disk[0].initialize_params[0].image, metadata["user-data"]]
  }
}

output "address" {
  description = "Where to log in."
  value       = google_compute_instance.machine.network_interface[0].access_config[0].nat_ip
}
